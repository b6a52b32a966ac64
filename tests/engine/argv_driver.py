"""Runs inside an engine's own environment: each argv through its real parser and, if asked, its config.

Reads ``[{"id", "argv", "depth"}]`` on stdin and prints ``{id: error or ""}`` as the last line of stdout.
Depth is "parser", "keys" (those of the speculative JSON too) or "config" (all of the engine's validation).
Starts no engine and loads no weights.
"""

import argparse
import contextlib
import io
import json
import sys
from typing import Any


def main() -> None:
    from vllm.config import SpeculativeConfig  # type: ignore[import-not-found]
    from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]
    from vllm.entrypoints.cli.serve import ServeSubcommand  # type: ignore[import-not-found]
    from vllm.usage.usage_lib import UsageContext  # type: ignore[import-not-found]
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

    parser = FlexibleArgumentParser(prog="vllm")
    serve = ServeSubcommand()
    serve.subparser_init(parser.add_subparsers(required=True, dest="subparser"))

    def judge(argv: list[str], depth: str) -> None:
        args: argparse.Namespace = parser.parse_args(argv[1:])
        serve.validate(args)
        if depth == "keys":
            SpeculativeConfig(**args.speculative_config)
        if depth == "config":
            args.model = getattr(args, "model_tag", None) or args.model
            engine_args = AsyncEngineArgs.from_cli_args(args)
            engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)

    cases = json.load(sys.stdin)
    print("\n" + json.dumps({c["id"]: _error(judge, c["argv"], c["depth"]) for c in cases}))


def _error(judge: Any, argv: list[str], depth: str) -> str:
    noise = io.StringIO()
    try:
        with contextlib.redirect_stderr(noise):
            judge(argv, depth)
    except SystemExit:
        return noise.getvalue().strip()[-400:] or "exit"
    except Exception as e:  # noqa: BLE001 - whatever the engine raises is its answer
        return f"{type(e).__name__}: {e}"[:2000]
    return ""


if __name__ == "__main__":
    main()
