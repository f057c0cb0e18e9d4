"""`lockstep invariance` adds padding: sound rows do not change with it, and a mask left out is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from lockstep_sampling.invariance.judging import Invariance, judge
from lockstep_sampling.invariance.module_arguments import ModuleCall
from lockstep_sampling.invariance.wording import headline


class Encoder(nn.Module):
    """Attention in both directions over tokens, in 32 bits or with a maximum of its own, and a mean over tokens."""

    def __init__(self, fault: str = "", padding: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(40, 16, padding_idx=padding)
        self.qkv, self.last = nn.Linear(16, 48), nn.Linear(16, 5)
        self.fault = fault

    def forward(
        self, ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        given = torch.ones_like(ids) if attention_mask is None else attention_mask
        kept = given.bool()
        q, k, v = self.qkv(self.tokens(ids)).split(16, -1)
        scores = q @ k.transpose(1, 2) / 4
        scores = scores - scores.amax(-1, keepdim=True)
        if self.fault != "attention":
            scores = scores.masked_fill(~kept[:, None, :], -torch.inf)
        h = scores.softmax(-1) @ v
        if self.fault == "mean":
            return self.last(h.mean(1))
        return self.last((h * kept[..., None]).sum(1) / kept.sum(1, keepdim=True))


def ids_of(rows: int = 4, length: int = 12) -> torch.Tensor:
    return torch.randint(2, 40, (rows, length), generator=torch.Generator().manual_seed(1))


def mask_of(ids: torch.Tensor, left: bool) -> torch.Tensor:
    mask = torch.ones_like(ids)
    place = slice(0, 5) if left else slice(-5, None)
    mask[1, place] = 0
    return mask


def found_of(module: nn.Module, ids: torch.Tensor, **given: torch.Tensor) -> Invariance:
    return judge(ModuleCall.of(module, (ids,), given))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(
    ("fault", "code", "operator"),
    [("", 0, ""), ("attention", 1, "torch.Tensor.amax"), ("mean", 1, "torch.Tensor.mean")],
)
def test_a_mask_that_is_left_out_is_named(fault: str, code: int, operator: str, left: bool) -> None:
    # given scores whose maximum has padding in it, which the softmax takes out again if it has a mask
    ids = ids_of()
    found = found_of(Encoder(fault), ids, attention_mask=mask_of(ids, left))
    assert found.exit_code == code
    assert found.padding.told_by == "attention_mask"
    fault_found = found.padding.fault
    assert (fault_found.operator.name if fault_found else "") == operator


def test_a_training_without_a_mask_is_told_by_the_padding_token() -> None:
    ids = ids_of()
    ids[1, -4:] = 0
    found = found_of(Encoder(padding=0), ids)
    assert found.exit_code == 1
    assert headline(found).startswith(
        "rows depend on their padding (told by no mask; token 0 is the model's padding)"
    )


def test_without_a_mask_and_a_padding_token_padding_is_not_tried() -> None:
    found = found_of(Encoder(), ids_of())
    assert (found.exit_code, found.padding.not_tried) == (0, "the call has no attention_mask")


def causal(position_ids: bool) -> nn.Module:
    torch.manual_seed(0)
    if position_ids:
        return GPT2LMHeadModel(
            GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=32)
        )
    return Qwen2ForCausalLM(
        Qwen2Config(vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2,
        )
    )  # fmt: skip


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("positions", ["relative", "given", "counted"])
def test_decoders_pad_soundly_unless_places_are_counted_from_the_padding(
    positions: str, left: bool
) -> None:
    ids = ids_of()
    given = {"attention_mask": mask_of(ids, left)}
    if positions == "given":
        given["position_ids"] = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
    module = causal(positions != "relative").train()  # with dropout, in the second
    found = found_of(module, ids, **given)
    assert found.exit_code == (1 if positions == "counted" and left else 0)


def test_an_encoder_of_transformers_pads_soundly() -> None:
    torch.manual_seed(0)
    settings = BertConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    ids = ids_of()
    found = found_of(BertModel(settings), ids, attention_mask=mask_of(ids, left=False))
    assert (found.exit_code, found.padding.not_tried) == (0, "")


@pytest.mark.parametrize(("is_masked", "code"), [(True, 0), (False, 1)])
def test_layers_of_torch_with_a_mask_of_what_is_left_out(is_masked: bool, code: int) -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 2)

        def forward(self, x: torch.Tensor, padding_mask: torch.Tensor) -> torch.Tensor:
            return self.layers(x, src_key_padding_mask=padding_mask if is_masked else None)

    x = torch.randn(4, 12, 16, generator=torch.Generator().manual_seed(0))
    given = mask_of(x[..., 0].long(), left=False) == 0
    found = judge(ModuleCall.of(Layers(), (x, given), {}))
    assert found.exit_code == code
    assert found.padding.told_by == "padding_mask"


@pytest.mark.parametrize(("is_kept", "code"), [(False, 0), (True, 1)])
def test_a_mask_that_keeps_the_padding_is_named(is_kept: bool, code: int) -> None:
    # given rows padded on the left, as a sampler pads its prompts
    module = causal(position_ids=False)
    module.config.pad_token_id = 0
    ids = ids_of()
    mask = mask_of(ids, left=True)
    ids = ids * mask
    found = found_of(module, ids, attention_mask=torch.ones_like(mask) if is_kept else mask)
    assert found.exit_code == code
    assert ("attention_mask keeps it; token 0" in headline(found)) == is_kept


def test_a_first_token_that_all_rows_have_is_no_padding() -> None:
    ids = ids_of()
    ids[:, 0] = 0
    found = found_of(Encoder(padding=0), ids)
    assert (found.exit_code, found.padding.fault) == (0, None)


@pytest.mark.parametrize("name", ["mask", "pad_mask", "attn_mask"])
@pytest.mark.parametrize(("fault", "code"), [("", 0), ("attention", 1)])
def test_a_mask_of_another_name_is_told_by_a_row_without_padding(
    name: str, fault: str, code: int
) -> None:
    # given a mask that is 1 for tokens, whatever its name seems to say
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Encoder(fault)

        def forward(self, ids: torch.Tensor, **given: torch.Tensor) -> torch.Tensor:
            return self.inner(ids, given[name])

    ids = ids_of()
    found = found_of(Named(), ids, **{name: mask_of(ids, left=False)})
    assert (found.exit_code, found.padding.told_by) == (code, name)


def test_a_mask_that_may_choose_the_tokens_of_a_loss_is_not_tried_at_the_beginning() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Encoder()

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.inner(ids)[:, :1] * mask

    ids = ids_of()
    found = found_of(Weighted(), ids, mask=mask_of(ids, left=True))
    assert found.exit_code == 0
    assert found.padding.not_tried.startswith("the argument mask begins with what may be padding")
