"""Trains the classifier on scikit-learn's digits: what the gate holds against the golden."""

import torch
from model import Digits
from sklearn.datasets import load_digits


def train(epochs: int = 1) -> float:
    """Train, and return the last loss."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images[:512], dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target[:512])
    model = Digits()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
    return loss.item()


if __name__ == "__main__":
    print(f"loss {train():.4f}")
