"""Runs inside an engine's own environment: each argv through its real parser and, if asked, its config.

Reads ``[{"id", "argv", "config"}]`` on stdin, prints ``{"version", "results": {id: error or ""}}`` as the
last line of stdout. Starts no engine and loads no weights.
"""

import argparse
import contextlib
import io
import json
import sys
from importlib.metadata import version
from typing import Any


def main() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]
    from vllm.entrypoints.cli.serve import ServeSubcommand  # type: ignore[import-not-found]
    from vllm.usage.usage_lib import UsageContext  # type: ignore[import-not-found]

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]
    except ImportError:
        from vllm.utils import FlexibleArgumentParser  # type: ignore[import-not-found]

    parser = FlexibleArgumentParser(prog="vllm")
    serve = ServeSubcommand()
    serve.subparser_init(parser.add_subparsers(required=True, dest="subparser"))
    results = {}
    for case in json.load(sys.stdin):
        results[case["id"]] = _try(case, parser, serve, AsyncEngineArgs, UsageContext.OPENAI_API_SERVER)
    print("\n" + json.dumps({"version": version("vllm"), "results": results}))


def _try(case: dict[str, Any], parser: Any, serve: Any, engine_args: Any, context: Any) -> str:
    noise = io.StringIO()
    try:
        with contextlib.redirect_stderr(noise):
            args: argparse.Namespace = parser.parse_args(case["argv"][1:])
            serve.validate(args)
            if case["config"]:
                args.model = getattr(args, "model_tag", None) or args.model
                engine_args.from_cli_args(args).create_engine_config(usage_context=context)
    except SystemExit:
        return noise.getvalue().strip()[-400:] or "exit"
    except Exception as e:  # noqa: BLE001 - whatever the engine raises is its answer
        return f"{type(e).__name__}: {e}"[:2000]
    return ""


if __name__ == "__main__":
    main()
