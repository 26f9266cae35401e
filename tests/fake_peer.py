"""Programs that print what llama.cpp's print, and nothing else."""

import json
import sys
from pathlib import Path

BENCH_HELP = """usage: llama-bench [options]
  -m, --model <filename>
  -p, --n-prompt <n>
  -n, --n-gen <n>
  -t, --threads <n>
"""
TEXT_HELP = """----- common params -----
-t,    --threads N                      number of CPU threads
-m,    --model FNAME                    model path
-n,    --predict, --n-predict N         number of tokens to predict
--display-prompt, --no-display-prompt   whether to print prompt
-cnv,  --conversation, -no-cnv, --no-conversation
-st,   --single-turn                    run conversation for a single turn only
"""
VERSION = "version: 0.5.0-dev (build 1, commit 0c1e570)\nbuilt with GNU 12.2.0"
OLD_PRINT = """
llama_perf_context_print:        load time =     277.73 ms
llama_perf_context_print: prompt eval time =     271.55 ms /     5 tokens (   54.31 ms per token)
llama_perf_context_print:        eval time =    2228.29 ms /    15 runs   (  148.55 ms per token)
"""
COMMON_PRINT = """
0.03.143.281 I common_perf_print:        load time =     277.73 ms
0.03.143.283 I common_perf_print: prompt eval time =     271.55 ms /     5 tokens (   54.31 ms)
0.03.143.285 I common_perf_print:        eval time =    2228.29 ms /    15 runs   (  148.55 ms)
"""
_PROGRAM = """#!{python}
import sys, time
words, version = sys.argv[1:], {version!r}
if "--help" in words:
    print({help!r})
elif "--version" in words:
    if version is None:
        sys.exit("error: unknown argument")
    print(version, file=sys.stderr)
else:
    with open({log!r}, "a") as file:
        file.write(repr(words) + "\\n")
    {does}
"""


def bench_json(prompt: int, tokens: int, prompt_speed: float, speed: float) -> str:
    """What llama-bench -o json prints."""
    tests = [(prompt, 0, prompt_speed), (0, tokens, speed)]
    return json.dumps(
        [
            {"n_prompt": p, "n_gen": n, "avg_ts": s, "avg_ns": int((p + n) / s * 1e9)}
            for p, n, s in tests
            if p + n
        ]
    )


def write_program(
    path: Path, *, help: str, version: str | None = VERSION, does: str = "pass"
) -> Path:
    """A program with this help; run, it writes its words to PATH.log and `does` a line of Python."""
    log = str(path.with_name(path.name + ".log"))
    text = _PROGRAM.format(python=sys.executable, help=help, version=version, log=log, does=does)
    path.write_text(text)
    path.chmod(0o755)
    return path


def calls(path: Path) -> list[str]:
    """The words of each time that such a program was run."""
    log = path.with_name(path.name + ".log")
    return log.read_text().splitlines() if log.exists() else []
