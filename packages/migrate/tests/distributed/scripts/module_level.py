"""An autoencoder: all at the top of the module, a method of the model's own, a checkpoint to go on from."""

from pathlib import Path

import torch
import witness
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
points = torch.randn(96, 6)
train_loader = DataLoader(TensorDataset(points[:64], torch.arange(64)), batch_size=8, shuffle=True)
test_loader = DataLoader(TensorDataset(points[64:], torch.arange(32)), 16, False)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(3)
        self.decoder = nn.Linear(3, 6)

    def decode(self, z):
        return self.decoder(z)

    def forward(self, x):
        return self.decode(self.norm(self.encoder(x)))


model = Autoencoder()
model.to(device)
optimizer = optim.Adam(model.parameters(), lr=1e-2)
if Path("start.pt").exists():
    model.load_state_dict(torch.load("start.pt"))


def train(epoch):
    model.train()
    total = 0
    for data, index in train_loader:
        data = data.to(device)
        optimizer.zero_grad()
        loss = (model(data) - data).square().mean()
        loss.backward()
        optimizer.step()
        total += loss.item()
        witness.saw("training", epoch, index)
        witness.lost(loss)
    print("epoch", epoch, total / len(train_loader))


@torch.no_grad()
def test(epoch):
    model.eval()
    for data, index in test_loader:
        model(data.to(device))
        witness.saw("evaluation", epoch, index)


if __name__ == "__main__":
    for epoch in range(4):
        train(epoch)
        test(epoch)
        with torch.no_grad():
            sample = model.decode(torch.zeros(2, 3).to(device))
    if epoch == 3:
        print("done", sample.shape)
    torch.save({"model": model.state_dict(), "epoch": epoch}, "net.pt")
    print("saved")
    witness.done(model)
