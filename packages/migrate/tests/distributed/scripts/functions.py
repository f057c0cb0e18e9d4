"""A classifier: functions for training and testing, loaders that take their options from dictionaries."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import witness


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.dropout = nn.Dropout(0.1)
        self.fc2 = nn.Linear(16, 3)

    def forward(self, x):
        return F.log_softmax(self.fc2(self.dropout(F.relu(self.fc1(x)))), dim=1)


def samples(count, seed):
    generator = torch.Generator().manual_seed(seed)
    data = torch.randn(count, 8, generator=generator)
    target = data[:, :3].argmax(dim=1)
    return torch.utils.data.TensorDataset(data, target, torch.arange(count))


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target, index) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        witness.saw("training", epoch, index)
        witness.lost(loss)
        if batch_idx % args.log_interval == 0:
            print(
                f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_loader.dataset)}]\tLoss: {loss.item():.6f}"
            )


def test(model, device, test_loader, epoch):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target, index in test_loader:
            output = model(data.to(device))
            correct += output.argmax(dim=1).eq(target.to(device)).sum().item()
            witness.saw("evaluation", epoch, index)

    print(f"\nTest set: {correct}/{len(test_loader.dataset)}\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--log-interval", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

    train_kwargs = {"batch_size": args.batch_size}
    test_kwargs = {"batch_size": 16}
    train_kwargs.update({"shuffle": True, "num_workers": 0})
    train_loader = torch.utils.data.DataLoader(samples(128, 2), **train_kwargs)
    test_loader = torch.utils.data.DataLoader(samples(40, 3), **test_kwargs)

    model = Net().to(device)
    optimizer = optim.Adam(model.parameters(), lr=0.05)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader, epoch)

    torch.save(model.state_dict(), "net.pt")  # the last
    witness.done(model)


if __name__ == "__main__":
    main()
