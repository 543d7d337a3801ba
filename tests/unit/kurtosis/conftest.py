"""Random models on disk."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t


@pytest.fixture(scope="session")
def save() -> Any:
    """Returns the function that saves a random model whose norms differ."""

    def save(cls: Any, config: Any, directory: Path) -> None:
        t.logging.disable_progress_bar()
        torch.manual_seed(0)
        model = cls(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(directory)

    return save
