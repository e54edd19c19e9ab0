"""Callback for Hugging Face's Trainer and what is built on it (TRL, Axolotl, LLaMA-Factory)."""

from typing import TYPE_CHECKING

from transformers import TrainerCallback

from asap_client.upload import ProfileUpload, UploadOptions

if TYPE_CHECKING:
    from typing import Unpack  # Python 3.11 has it, trainers may run 3.10


class AsapCallback(TrainerCallback):
    """Accepts the arguments of `ProfileUpload`."""

    def __init__(self, server: str, key: str | None = None, **options: "Unpack[UploadOptions]") -> None:
        self.upload = ProfileUpload(server, key, **options)

    def on_train_begin(self, *_: object, **__: object) -> None:
        self.upload.start()

    def on_step_end(self, *_: object, **__: object) -> None:
        """After the optimizer's step, so accumulated micro-batches count once."""
        self.upload.step()

    def on_train_end(self, *_: object, **__: object) -> None:
        self.upload.finish()
