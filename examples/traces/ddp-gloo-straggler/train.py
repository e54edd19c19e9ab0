"""Two ranks of data parallelism in which rank 1 gets three times the batch: it arrives late everywhere."""

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
torch.manual_seed(0)
distributed.init_process_group("gloo")
batch = 128 * (3 if distributed.get_rank() == 1 else 1)
layers = nn.Sequential(
    nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 512)
)
model = DistributedDataParallel(layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(14):
    optimizer.zero_grad()
    model(torch.randn(batch, 512)).pow(2).mean().backward()
    optimizer.step()
distributed.destroy_process_group()
