"""Model, data, training and test: nothing of Flower or Pomona."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SITES = 4


class Net(nn.Module):
    """A small network for digits of 8 x 8 pixels."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        """Return the scores of the ten digits."""
        return self.fc2(torch.relu(self.fc1(x)))


def load_data(site, batch_size=16):
    """Return a hospital's loaders for training and testing.

    Each hospital's images are turned by another quarter, so that one model for all has to learn
    each digit four times.
    """
    images, labels = load_digits(return_X_y=True)
    rows = slice(site % SITES, None, SITES)
    x = torch.rot90(torch.tensor(images[rows]).view(-1, 8, 8), site % SITES, (1, 2)).flatten(1)
    data = TensorDataset(x.float() / 16, torch.tensor(labels[rows]).long())
    train, test = TensorDataset(*data[:300]), TensorDataset(*data[300:])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(test, batch_size)


def train(net, trainloader, epochs, lr, device):
    """Train the model on the training set."""
    net.to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for x, y in trainloader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / len(trainloader) / epochs


def test(net, testloader, device):
    """Return loss and accuracy of the model on the test set."""
    net.to(device)
    loss, correct = 0.0, 0
    with torch.no_grad():
        for x, y in testloader:
            outputs, labels = net(x.to(device)), y.to(device)
            loss += nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
            correct += (outputs.argmax(1) == labels).sum().item()
    return loss / len(testloader.dataset), correct / len(testloader.dataset)
