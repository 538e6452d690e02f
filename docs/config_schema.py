"""The JSON schema of configs, for editors: `python -m docs.config_schema` writes it again."""

import json
from pathlib import Path

from loopwright.config.schema import Config

FILE = Path(__file__).parent / "config.schema.json"


def text() -> str:
    """Return the content of the file."""
    return json.dumps(Config.model_json_schema(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
