"""A training of one's own: it knows torchrun's variables and nothing else. It learns a line."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
epochs = parser.parse_args().epochs

cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")

torch.manual_seed(0)
inputs = torch.linspace(-1, 1, 512).unsqueeze(1)
targets = 3 * inputs + 0.5
model = DistributedDataParallel(torch.nn.Linear(1, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

for epoch in range(epochs):
    mine = slice(rank, None, size)
    loss = torch.nn.functional.mse_loss(model(inputs[mine].to(device)), targets[mine].to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(f"epoch {epoch + 1} of {epochs}, {size} processes: loss {loss.item():.6f}", flush=True)

dist.destroy_process_group()
