"""Small training programs with ASAP's callbacks in them: `programs.py FOLDER SERVER NAME[=SERVER]...`.

They share a process, because importing the frameworks costs more than training.
"""

import json
import sys
from pathlib import Path

import torch
from torch import distributed, nn

from asap_client.capture import CaptureSchedule
from asap_client.upload import ProfileUpload

SCHEDULE = CaptureSchedule(wait=1, warmup=1, active=2)
STEPS = 6
SCENARIO = Path(__file__).resolve().parents[3] / "examples/traces/gpt-ddp-gloo/base.json"


def plain(server: str, folder: str) -> ProfileUpload:
    """A loop of one's own, with data parallelism over gloo, and a scenario for a session."""
    scenario = json.loads(SCENARIO.read_text())
    upload = ProfileUpload(server, name="plain", folder=folder, schedule=SCHEDULE, scenario=scenario)
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters())
    upload.start()
    for _ in range(STEPS):
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        upload.step()
    upload.finish()
    distributed.destroy_process_group()
    return upload


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((64,), float(index))}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(x).square().mean()}


def hugging_face(server: str, folder: str) -> ProfileUpload:
    from transformers import Trainer, TrainingArguments

    from asap_client.hugging_face import AsapCallback

    callback = AsapCallback(server, name="hugging-face", folder=folder, schedule=SCHEDULE)
    arguments = TrainingArguments(
        output_dir=folder, max_steps=STEPS, gradient_accumulation_steps=2, per_device_train_batch_size=2,
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, remove_unused_columns=False,
    )  # fmt: skip
    Trainer(model=Model(), args=arguments, train_dataset=Rows(), callbacks=[callback]).train()
    return callback.upload


def lightning(server: str, folder: str) -> ProfileUpload:
    import pytorch_lightning as pl

    from asap_client.lightning import AsapCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self.model(batch["x"])["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = AsapCallback(server, name="lightning", folder=folder, schedule=SCHEDULE)
    trainer = pl.Trainer(
        max_steps=STEPS, accumulate_grad_batches=2, accelerator="cpu", logger=False, callbacks=[callback],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(Rows(), batch_size=2))
    return callback.upload


PROGRAMS = {"plain": plain, "hugging-face": hugging_face, "lightning": lightning}


def main(folder: str, server: str, *runs: str) -> None:
    for number, run in enumerate(runs):
        name, _, other = run.partition("=")
        upload = PROGRAMS[name](other or server, str(Path(folder) / str(number)))
        print(json.dumps({"run": run, "trace": upload.trace, "session": upload.session}))


if __name__ == "__main__":
    main(*sys.argv[1:])
