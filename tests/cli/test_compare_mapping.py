"""`lockstep compare` with other knowledge about the two runs: --mapping, --calibration, --noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import lockstep
from lockstep.cli.main import main


class Net(torch.nn.Module):
    """Two layers of one shape under given names, the second of which is called first if `swapped`."""

    def __init__(
        self, first: str, second: str, *, slope: float = 0.01, swapped: bool = False
    ) -> None:
        super().__init__()
        layers = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)]
        self.add_module(first, layers[0])
        self.add_module(second, layers[1])
        self.order = (second, first) if swapped else (first, second)
        self.slope = slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.leaky_relu(self.get_submodule(self.order[0])(x), self.slope)
        return self.get_submodule(self.order[1])(x)


def recorded(path: Path, model: torch.nn.Module) -> Path:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(5, 8), torch.randn(5, 8)
    with lockstep.record(path, model=model, steps="0:1"):
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return path


def made(path: Path, *names: str) -> Path:
    """The network under these names, always with the same parameters."""
    torch.manual_seed(0)
    return recorded(path, Net(*names))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, `encoder` and `head`."""
    return made(tmp_path_factory.mktemp("mapping") / "reference", "encoder", "head")


def swapped_parameters(path: Path, *names: str, slope: float = 0.01) -> Path:
    """The same numbers, but the module that is named first is the second layer."""
    torch.manual_seed(0)
    source = Net("encoder", "head")
    model = Net(*names, slope=slope, swapped=True)
    model.get_submodule(names[0]).load_state_dict(source.head.state_dict())
    model.get_submodule(names[1]).load_state_dict(source.encoder.state_dict())
    return recorded(path, model)


def mapping_file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "names.yaml"
    path.write_text(text)
    return str(path)


def test_a_mapping_puts_together_what_names_would_mix_up(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a candidate that calls the reference's encoder `head` and its head `encoder`
    candidate = swapped_parameters(tmp_path / "candidate", "encoder", "head")
    assert main(["compare", str(reference), str(candidate)]) == 1
    capsys.readouterr()
    # when a mapping says so
    mapping = mapping_file(tmp_path, "modules:\n  encoder: head\n  head: encoder\n")
    code = main(["compare", str(reference), str(candidate), "--mapping", mapping, "--json"])
    # then the two agree, with everything aligned
    result = json.loads(capsys.readouterr().out)
    assert (code, result["verdict"]) == (0, "agree")
    assert result["unaligned"] == {"reference": 0, "candidate": 0}


def test_a_fault_is_named_through_a_mapping(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    candidate = swapped_parameters(tmp_path / "candidate", "encoder", "head", slope=0.02)
    mapping = mapping_file(tmp_path, "modules: {encoder: head, head: encoder}")
    assert main(["compare", str(reference), str(candidate), "--mapping", mapping, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["origin"]["op"].endswith("leaky_relu")


def test_other_names_are_found_without_a_mapping_and_said(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    candidate = made(tmp_path / "candidate", "stem", "score")
    assert main(["compare", str(reference), str(candidate)]) == 0
    said = capsys.readouterr().out
    assert "renamed module encoder -> stem, by equal contents" in said
    assert "renamed module head -> score, by equal contents" in said


def test_a_name_that_nothing_has_is_said_with_the_nearest(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    candidate = made(tmp_path / "candidate", "stem", "score")
    mapping = mapping_file(tmp_path, "modules: {encoders: stem}")
    assert main(["compare", str(reference), str(candidate), "--mapping", mapping]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "'encoders' matches nothing in the reference" in said
    assert said.endswith("nearest: encoder")


def test_a_file_that_is_no_mapping_is_said(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    candidate = made(tmp_path / "candidate", "stem", "score")
    for text, words in (
        ("modules: [", "is not valid YAML"),
        ("layers: {a: b}", "unknown key 'layers'"),
    ):
        mapping = mapping_file(tmp_path, text)
        assert main(["compare", str(reference), str(candidate), "--mapping", mapping]) == 2
        assert words in capsys.readouterr().err


def test_noise_takes_other_runs_of_the_reference(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = [made(tmp_path / f"again{number}", "encoder", "head") for number in range(2)]
    candidate = made(tmp_path / "candidate", "encoder", "head")
    noise = [word for path in again for word in ("--noise", str(path))]
    assert main(["compare", str(reference), str(candidate), *noise]) == 0
    # and neither the reference itself nor what is no recording
    for path, words in ((reference, "is the reference itself"), (tmp_path, "")):
        assert main(["compare", str(reference), str(candidate), "--noise", str(path)]) == 2
        assert words in capsys.readouterr().err


def test_a_plain_recording_is_no_calibration(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = made(tmp_path / "plain", "encoder", "head")
    candidate = made(tmp_path / "candidate", "encoder", "head")
    arguments = ["compare", str(reference), str(candidate), "--calibration", str(plain)]
    assert main(arguments) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "is not a calibration; make one with lockstep record --calibrate" in said
