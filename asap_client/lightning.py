"""Callback for Lightning's Trainer."""

from typing import TYPE_CHECKING

from asap_client.upload import ProfileUpload, UploadOptions

if TYPE_CHECKING:
    from typing import Unpack  # Python 3.11 has it, trainers may run 3.10

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:  # the same classes under their older name
    from pytorch_lightning import Callback, LightningModule, Trainer


class AsapCallback(Callback):  # type: ignore[misc]  # one of two classes
    """Accepts the arguments of `ProfileUpload`."""

    def __init__(self, server: str, key: str | None = None, **options: "Unpack[UploadOptions]") -> None:
        self.upload = ProfileUpload(server, key, **options)
        self._steps_seen = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._steps_seen = trainer.global_step
        self.upload.start()

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        """A batch is a step only if the optimizer stepped: micro-batches may be accumulated."""
        if trainer.global_step != self._steps_seen:
            self._steps_seen = trainer.global_step
            self.upload.step()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.upload.finish()
