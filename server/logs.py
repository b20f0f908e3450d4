"""Logs as one JSON object a line, on stderr or in rotating files; values, keys and tokens never reach them."""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
import time
from pathlib import Path
from typing import Any, Final

FILE_BYTES_MAX: Final = 64 << 20
FILES_MAX: Final = 5
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time in UTC, level, logger, message, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({name: field for name, field in record.__dict__.items() if name not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def set_up_logs(level: str, log_dir: Path | None) -> None:
    """Sends the logs of this process to stderr, or to `log_dir`/terracekv.log, 5 files of 64 MiB."""
    handler: logging.Handler
    if log_dir is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        log_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler = logging.handlers.RotatingFileHandler(
            log_dir / "terracekv.log", maxBytes=FILE_BYTES_MAX, backupCount=FILES_MAX - 1, encoding="utf-8"
        )
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("terracekv").setLevel(level.upper())
