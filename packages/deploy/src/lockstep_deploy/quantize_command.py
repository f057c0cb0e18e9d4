"""`lockstep quantize`: a model in fewer bits, and what that costs at every layer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from lockstep import options
from lockstep.errors import UsageError, code_of
from lockstep.files import check_output_file
from lockstep.terminal import counted, enveloped, json_text, listed
from lockstep_deploy.large_models import whole
from lockstep_deploy.model_file import ModelFile, open_model, write_model
from lockstep_deploy.quantize.build import Plan, bytes_in_8_bits, quantized_model
from lockstep_deploy.quantize.calibration import Samples, drawn_samples, read_samples
from lockstep_deploy.quantize.draws import seed_draws, unseed_draws
from lockstep_deploy.quantize.dynamic import dynamic_errors, dynamic_model
from lockstep_deploy.quantize.errors import layer_errors
from lockstep_deploy.quantize.layers import Layer, layers_of, left_in_float32
from lockstep_deploy.quantize.mixed import Search, middle_bits, searched
from lockstep_deploy.quantize.screen import (
    ACCEPTED_POINTS,
    LEAST_DB,
    Answer,
    Floor,
    as_values,
    render,
)
from lockstep_deploy.quantize.static import Calibration, Method
from lockstep_deploy.quantize.task import Outcome, outcome
from lockstep_deploy.quantize.widths import check_bits
from lockstep_deploy.sixteen_bits import is_float16, widened


class _Decibels(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 alone
    """A ratio in decibels, as in `30dB` or `30`."""

    name = "DECIBELS"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        """As a number of decibels."""
        match = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)\s*(?:dB)?", str(value).strip(), re.IGNORECASE)
        if match is None:
            self.fail(f"{value!r} is no ratio; write 30dB", parameter, context)
        return float(match[1])


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@options.option("--output", required=True, words="A file.")
@click.option(
    "--bits",
    type=int,
    default=8,
    show_default=True,
    help="Use this many bits for each weight, 1 to 16.",
)
@click.option(
    "--activations", type=click.Choice(["8", "16"]),
    help="Use this many bits for each activation.  [default: 8 for weights of up to 8 bits, else 16]",
)  # fmt: skip
@click.option(
    "--ranges-from", "calibrate", cls=options.Option, old=["--calibrate"], multiple=True, metavar="FILE|SPEC",
    help="Take the ranges of activations from these samples; an array `labels` holds the right classes.",
)  # fmt: skip
@options.option(
    "--inputs", multiple=True, words="Samples to measure on.  [default: those of --ranges-from]"
)
@click.option(
    "--method", type=click.Choice([one.value for one in Method]), default="minmax", show_default=True,
    help="Choose the range of an activation by this method.",
)  # fmt: skip
@click.option(
    "--per-channel/--per-tensor", default=True, show_default=True,
    help="Use one step for each output channel of a weight, or one for the whole weight.",
)  # fmt: skip
@click.option(
    "--dynamic-ranges", is_flag=True,
    help="Take ranges of activations as the model runs, on 8 bits: usual for transformers and LSTMs.",
)  # fmt: skip
@click.option("--weight-only", is_flag=True, help="Leave activations in float32.")
@click.option(
    "--reduce-range", is_flag=True,
    help="Use 7 of 8 bits for weights, for processors whose integer kernels saturate (without VNNI).",
)  # fmt: skip
@click.option(
    "--least-sqnr", "budget", cls=options.Option, old=["--budget", "--min-db"], type=_Decibels(),
    help="Exit with 1 if a layer or the results have a lower SQNR, as in 30dB."
    f"  [default: {LEAST_DB:g}dB for the results]",
)  # fmt: skip
@options.option(
    "--accept", is_flag=False, flag_value=math.inf,
    words="In points of accuracy, if you pass labels; without a number any loss is accepted."
    f"  [default: {ACCEPTED_POINTS:g}]",
)  # fmt: skip
@click.option(
    "--mixed", type=_Decibels(), metavar="DECIBELS",
    help="Raise the widths of as few layers as let the results reach this SQNR, as in 40dB.",
)  # fmt: skip
@options.force
@options.limit
@options.as_json
def quantize(
    model: Path,
    output: Path,
    bits: int,
    activations: str | None,
    calibrate: tuple[str, ...],
    inputs: tuple[str, ...],
    method: str,
    per_channel: bool,
    dynamic_ranges: bool,
    weight_only: bool,
    reduce_range: bool,
    budget: float | None,
    accept: float | None,
    mixed: float | None,
    force: bool,
    limit: int,
    as_json: bool,
) -> int:
    """Quantise an ONNX model, and say what it costs at each layer and whether the width explains that.

    Weights take 1 to 16 bits. Activations take 8 or 16, with ranges from the samples of
    --ranges-from, or stay in float32 (--weight-only). Lockstep runs each layer on float32 inputs
    before and after, and compares its error with the rounding of its width, as the file says it and
    with the kernels of this machine. SQNR is 10 log10(sum y^2 / sum (y' - y)^2), in dB; "carried"
    is a layer's SQNR in the whole quantised model.

    Exit code 0 if each error is explained and within --least-sqnr, --accept and --mixed, 1 if one
    is not, 2 if the model cannot be quantised.

    \b
    lockstep quantize model.onnx -o int8.onnx --ranges-from train.npz --inputs test.npz
    lockstep quantize model.onnx -o int4.onnx --bits 4 --weight-only --least-sqnr 20dB
    lockstep quantize bert.onnx -o int8.onnx --dynamic-ranges --inputs test.npz
    lockstep quantize model.onnx -o mixed.onnx --ranges-from train.npz --mixed 40dB
    """
    check_bits(bits)
    check_output_file(output, force=force)
    file = open_model(model)
    file = replace(file, proto=whole(file.proto))  # quantisers read messages alone
    given, is_half = file.proto, is_float16(file.proto)
    facts_of = {"of": file.digest}
    if is_half:
        file = replace(file, proto=widened(given))
    draws = seed_draws(file.proto)
    if dynamic_ranges:
        _check_dynamic(bits, activations, weight_only, mixed)
        measured, measured_on = _measured(file, inputs, calibrate, None)
        quantised = dynamic_model(file.proto, per_channel=per_channel, reduce_range=reduce_range)
        errors, search = dynamic_errors(file.proto, quantised, measured), None
        in_8_bits = None
        facts = {"activations": "dynamic", "per_channel": per_channel}
    else:
        layers = _layers_of(model, file, lookups=weight_only)
        calibration = _calibration(
            file,
            calibrate,
            activations,
            bits,
            weight_only,
            Method(method),
            per_channel,
            reduce_range,
        )
        measured, measured_on = _measured(file, inputs, calibrate, calibration)
        plan = Plan({layer.name: bits for layer in layers}, calibration, per_channel)
        search = None if mixed is None else _search(file, layers, plan, measured, mixed)
        if search is not None:
            plan = replace(plan, bits=search.chosen.bits)
        quantised = quantized_model(file.proto, layers, plan)
        errors = layer_errors(file.proto, quantised, layers, plan, measured)
        in_8_bits = bytes_in_8_bits(file.proto, layers, plan)
        facts = _facts(plan, layers)
    result = outcome(given, quantised, measured)
    if not (inputs or calibrate):
        result = replace(result, worst_error={}, samples=0)
    answer = Answer(
        errors, result, measured_on, budget, reduce_range, mixed, () if search is None else search.trials,
        left_in_float32(file.proto, quantised), Floor.of(budget, accept), per_channel,
        draws, is_half, in_8_bits,
    )  # fmt: skip
    facts |= facts_of | _measured_facts(answer)
    unseed_draws(quantised, draws)
    write_model(quantised, output, file.facts | {"quantized": facts})
    if as_json:
        click.echo(json_text(enveloped(as_values(answer))))
    else:
        click.echo(render(answer, limit=limit).plain)
    return code_of(
        differs=bool(answer.faults or answer.beyond or answer.misses or answer.is_below),
        looked=bool(answer.layers),
    )


def _layers_of(model: Path, file: ModelFile, *, lookups: bool) -> tuple[Layer, ...]:
    layers = layers_of(file.proto, lookups=lookups)
    if not layers:
        raise UsageError(
            f"{model}: has no weights to quantise (float32 or float16 weights of Conv,"
            " ConvTranspose, Gemm or MatMul)"
        )
    return layers


def _calibration(
    file: ModelFile, calibrate: tuple[str, ...], activations: str | None, bits: int, weight_only: bool,
    method: Method, per_channel: bool, reduce_range: bool,
) -> Calibration | None:  # fmt: skip
    """What ranges of activations are taken from; None where these stay in float32."""
    if weight_only:
        if activations:
            raise UsageError("--activations and --weight-only exclude each other: leave one out")
        return None
    if not calibrate:
        raise UsageError(
            "--ranges-from FILE gives the samples that ranges are taken from; or give --dynamic-ranges or --weight-only"
        )
    samples = read_samples(calibrate, file.inputs, option="--ranges-from")
    width = int(activations or (8 if bits <= 8 else 16))
    return Calibration(samples, method, width, per_channel, reduce_range)


def _check_dynamic(
    bits: int, activations: str | None, weight_only: bool, mixed: float | None
) -> None:
    """Refuse what ranges that are taken as the model runs have no use for."""
    wrong = [
        name
        for name, given in (
            ("--bits other than 8", bits != 8), ("--activations", activations), ("--weight-only", weight_only),
            ("--mixed", mixed),
        )
        if given
    ]  # fmt: skip
    if wrong:
        raise UsageError(f"--dynamic-ranges excludes {listed(wrong)}: leave one out")


def _search(
    file: ModelFile, layers: tuple[Layer, ...], plan: Plan, samples: Samples, target_db: float
) -> Search:
    """Raise as few layers as let the results reach a target, those first whose own error is the largest."""

    def attempt(bits: Mapping[str, int]) -> Outcome:
        return outcome(
            file.proto, quantized_model(file.proto, layers, replace(plan, bits=bits)), samples
        )

    errors = layer_errors(
        file.proto, quantized_model(file.proto, layers, plan), layers, plan, samples
    )
    own = {one.name: one.fused for one in errors}
    worst_first = sorted(plan.bits, key=lambda name: own.get(name, math.inf))
    bits = max(plan.bits.values())
    middle = middle_bits(bits, min(own.values(), default=0.0), len(layers), target_db)
    return searched(worst_first, bits, middle, target_db, attempt)


def _measured(
    file: ModelFile,
    inputs: tuple[str, ...],
    calibrate: tuple[str, ...],
    calibration: Calibration | None,
) -> tuple[Samples, str]:
    """What errors are measured on, and what to call it."""
    if inputs:
        samples = read_samples(inputs, file.inputs, option="--inputs")
        return samples, f"{counted(samples.count, 'sample')} of --inputs"
    if calibration is not None or calibrate:
        samples = (
            calibration.samples
            if calibration
            else read_samples(calibrate, file.inputs, option="--ranges-from")
        )
        return samples, f"the {counted(samples.count, 'sample')} of --ranges-from"
    samples = drawn_samples(file.inputs)
    return (
        samples,
        f"{counted(samples.count, 'sample')} drawn at random, not data of yours (give --inputs)",
    )


def _facts(plan: Plan, layers: tuple[Layer, ...]) -> dict[str, Any]:
    """What the file says about how it was made."""
    calibration = plan.calibration
    return {
        "bits": {layer.name: plan.bits[layer.name] for layer in layers},
        "activations": None if calibration is None else calibration.bits,
        "method": None if calibration is None else calibration.method.value,
        "samples": None if calibration is None else calibration.samples.count,
        "per_channel": plan.per_channel,
    }


def _measured_facts(answer: Answer) -> dict[str, Any]:
    """What the file says about how far its results are off, and on what that was measured."""
    return {
        "worst_error": dict(answer.outcome.worst_error),
        "measured_on": answer.measured_on,
        "measured_samples": answer.outcome.samples,
    }
