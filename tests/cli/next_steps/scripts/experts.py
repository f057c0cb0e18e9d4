"""A mixture of experts with a loss that balances them; `bug` counts padding, `rows` chooses rows instead of a mask."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

mode = sys.argv[1]
torch.manual_seed(0)
experts, chosen = 4, 2


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, 16, 16) * 0.2)

    def forward(self, x):
        self.logits = self.gate(x)
        share, index = torch.softmax(self.logits, -1).topk(chosen, -1)
        share = share / share.sum(-1, keepdim=True)
        dense = torch.zeros_like(self.logits).scatter(-1, index, share)
        return torch.einsum("bte,eij,btj->bti", dense, self.up, x)


def balance(logits, mask):
    shares = torch.softmax(logits.flatten(0, 1), -1)
    mask = mask.flatten()
    hits = F.one_hot(shares.topk(chosen, -1).indices, experts).float()
    if mode == "rows":
        shares, hits = shares[mask.bool()], hits[mask.bool()]
        share, hit = shares.mean(0), hits.mean((0, 1))
    elif mode == "bug":
        share, hit = shares.mean(0), hits.mean((0, 1))
    else:
        share = (shares * mask[:, None]).sum(0) / mask.sum()
        hit = (hits * mask[:, None, None]).sum((0, 1)) / mask.sum() / chosen
    return (share * hit).sum() * experts


embedding, router, head = nn.Embedding(30, 16, padding_idx=0), Router(), nn.Linear(16, 30)
model = nn.ModuleList([embedding, router, head])
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
draw = torch.Generator().manual_seed(1)
for step in range(3):
    length = torch.randint(4, 13, (6, 1), generator=draw)
    ids = torch.randint(1, 30, (6, 12), generator=draw)
    mask = (torch.arange(12)[None] < length).float()
    ids = ids * mask.long()
    logits = head(router(embedding(ids)))
    labels = ids.masked_fill(mask == 0, -100)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    loss = loss + 0.02 * balance(router.logits, mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("LOSS", step, loss.item())
