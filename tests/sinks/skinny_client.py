"""A training that has mlflow-skinny only: `python -m tests.sinks.skinny_client RUN OPTIONS`.

The packages that the complete MLflow needs and mlflow-skinny does not cannot be imported.
"""

import json
import sys
from pathlib import Path

COMPLETE = "sqlalchemy alembic flask pandas scipy sklearn matplotlib docker graphene huey pyarrow"

if __name__ == "__main__":
    for module in COMPLETE.split():
        sys.modules[module] = None  # pyright: ignore[reportArgumentType]
    from tests.sinks import tracked_program

    tracked_program.train(Path(sys.argv[1]), "MLflow", json.loads(sys.argv[2]), 0.0)
    assert sys.modules["sqlalchemy"] is None
