"""Public architectures with random weights, small: each a function that returns a module and its inputs."""

import torch
from torch import nn
from torch.nn import functional as F

IMAGES = (2, 3, 32, 32)


def _ids(*shape, below=100):
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(0))


def _images():
    return torch.randn(IMAGES, generator=torch.Generator().manual_seed(0))


_TOKENS = {"vocab_size": 100, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=32, use_cache=False, **_TOKENS)
    return GPT2LMHeadModel(config), {"input_ids": _ids(2, 8)}


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=100,
    )
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    return BertForSequenceClassification(config), {"input_ids": _ids(2, 8), "attention_mask": mask}


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    )
    return ViTForImageClassification(config), {"pixel_values": _images()}


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, vocab_size=100, use_cache=False,
        decoder_start_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    return T5ForConditionalGeneration(config), {
        "input_ids": _ids(2, 8),
        "decoder_input_ids": _ids(2, 6),
    }


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        max_position_embeddings=64, use_cache=False, **_TOKENS,
    )  # fmt: skip
    return LlamaForCausalLM(config), {"input_ids": _ids(2, 8)}


def resnet():
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_labels=5)
    return ResNetForImageClassification(config), {"pixel_values": _images()}


def convnext():
    from transformers import ConvNextConfig, ConvNextForImageClassification

    torch.manual_seed(0)
    config = ConvNextConfig(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, num_labels=5)
    return ConvNextForImageClassification(config), {"pixel_values": _images()}


def mobilenet():
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    torch.manual_seed(0)
    config = MobileNetV2Config(depth_multiplier=0.25, image_size=32, num_labels=5)
    return MobileNetV2ForImageClassification(config), {"pixel_values": _images()}


def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    config = WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=32, max_target_positions=16, num_mel_bins=20,
        use_cache=False, decoder_start_token_id=0, **_TOKENS,
    )  # fmt: skip
    features = torch.randn(2, 20, 64, generator=torch.Generator().manual_seed(0))
    return WhisperForConditionalGeneration(config), {
        "input_features": features,
        "decoder_input_ids": _ids(2, 6),
    }


class Tagger(nn.Module):
    """A bidirectional LSTM that tags a sequence."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(100, 16)
        self.lstm = nn.LSTM(16, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 7)

    def forward(self, ids):
        return self.head(self.lstm(self.tokens(ids))[0])


def lstm():
    torch.manual_seed(0)
    return Tagger(), {"ids": _ids(2, 9)}


class UNet(nn.Module):
    """Down, up, and what is kept in between."""

    def __init__(self):
        super().__init__()

        def double(before, after):
            return nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.SiLU(),
                nn.Conv2d(after, after, 3, padding=1), nn.SiLU(),
            )  # fmt: skip

        self.down, self.middle, self.last = double(3, 8), double(8, 16), nn.Conv2d(16, 2, 1)
        self.up, self.after = nn.ConvTranspose2d(16, 8, 2, stride=2), double(16, 16)

    def forward(self, x):
        kept = self.down(x)
        deep = self.middle(F.max_pool2d(kept, 2))
        smooth = F.interpolate(deep, scale_factor=2, mode="bilinear", align_corners=False)
        joined = self.after(torch.cat([kept, self.up(deep)], 1))
        return self.last(joined), smooth.mean((2, 3))


def unet():
    torch.manual_seed(0)
    return UNet(), _images()


class Detector(nn.Module):
    """Boxes and scores of anchors, the best of them by score."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.Hardswish(),
            nn.Conv2d(16, 16, 3, 2, 1),
        )
        self.scores, self.boxes = nn.Conv2d(16, 3, 1), nn.Conv2d(16, 12, 1)

    def forward(self, x):
        features = F.relu6(self.body(x))
        scores = self.scores(features).flatten(1).sigmoid()
        boxes = self.boxes(features).unflatten(1, (3, 4)).movedim(2, -1).flatten(1, 3)
        centre, size = boxes[..., :2], boxes[..., 2:].clamp(max=4.0).exp()
        corners = torch.cat([centre - size / 2, centre + size / 2], -1)
        best, at = scores.topk(10, 1)
        return best, corners.gather(1, at[..., None].expand(-1, -1, 4)).clamp(0, 32)


def detector():
    torch.manual_seed(0)
    return Detector(), _images()


EVERY = (gpt2, bert, vit, t5, llama, resnet, convnext, mobilenet, whisper, lstm, unet, detector)
