"""A folder as Hugging Face writes it: the module that its `config.json` names, by transformers, from the disk alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from lockstep.errors import UsageError
from lockstep.terminal import listed
from lockstep_deploy.engines import as_sentence, engine
from lockstep_deploy.inputs import Drawn

_SHOWN = 5


def pretrained(
    folder: Path, trusted: bool, said: list[str]
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The module of a folder, and inputs for it; none where its configuration does not say what it takes.

    folder: With `config.json` and weights.
    trusted: Whether code that lies in the folder may run.
    said: Gets a sentence for each choice.

    Raises UsageError if transformers does not know the architecture, or the weights are not those of it.
    """
    config = _config(folder)
    transformers = engine("transformers", "examples")
    name = next(iter(config.get("architectures") or []), None)
    found = getattr(transformers, str(name), None)
    if config.get("auto_map"):
        found = _own_class(transformers, folder, config["auto_map"], trusted)
    if name is None or found is None:
        raise UsageError(
            f"{folder}/config.json: names {name or 'no architecture'}, which transformers {transformers.__version__}"
            " does not have; give what makes the module with --factory"
        )
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with as_sentence(f"{folder}: transformers cannot load {name}"):
        # Fused attention, as torch has it, cannot be taken apart in every layout (T5's).
        module, info = found.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, trust_remote_code=trusted, dtype="auto",
            attn_implementation="eager",
        )  # fmt: skip
    for key, words in (("missing_keys", "lacks"), ("mismatched_keys", "has other shapes at")):
        names = [str(one) for one in info.get(key, ())]
        if names:
            raise UsageError(
                f"{folder}: {words} {listed(sorted(names), _SHOWN)} of {name}, which transformers fills at random; give"
                " the folder that the whole model was saved to"
            )
    beside = sorted(str(one) for one in info.get("unexpected_keys", ()))
    said += [f"{name} does not use {listed(beside, _SHOWN)} of {folder.name}"] if beside else []
    configs = [one.config for one in module.modules() if hasattr(one, "config")]
    cached = [one for one in configs if getattr(one, "use_cache", False)]
    for one in cached:
        one.use_cache = False
    if cached:
        said.append("without its cache of keys and values (use_cache): whole sequences at once")
    inputs = _inputs(module)
    said.append('attention as single operators (attn_implementation="eager")')
    said += [f"inputs drawn for {listed(list(inputs))}, as config.json says"] if inputs else []
    return module, inputs


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{folder}: is not a recording and has no config.json ({error.strerror or error}); give what makes its"
            " module with --factory"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: holds a {type(found).__name__}, not an object")
    return found


def _own_class(transformers: Any, folder: Path, named: Any, trusted: bool) -> Any:
    """The class of transformers that runs the code which lies in a folder."""
    if not trusted:
        raise UsageError(
            f"{folder}: its config.json names code in the folder; read it, and give --trust to run it"
        )
    models = (
        [one for one in named if one.startswith("AutoModel")] if isinstance(named, dict) else []
    )
    return getattr(transformers, models[0], None) if models else None


def _inputs(module: Any) -> dict[str, torch.Tensor]:
    """Inputs of what a module says that it is given first: ids below its vocabulary, or an image of its size."""
    config, name = module.config, module.main_input_name
    text, size = config.get_text_config(), getattr(config, "image_size", None)
    if name == "input_ids" and isinstance(getattr(text, "vocab_size", None), int):
        drawn = Drawn(name, "int64", (1, 16), text.vocab_size)
    elif name == "pixel_values" and size is not None:
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        drawn = Drawn(name, "float32", (1, getattr(config, "num_channels", 3), height, width))
    else:
        return {}
    found = {name: torch.from_numpy(drawn.array(0)).to(module.dtype if size else torch.int64)}
    if config.is_encoder_decoder and name == "input_ids":
        found["decoder_input_ids"] = found[name][:, :8]
    return found
