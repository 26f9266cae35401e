"""What the MTP head of a model is good for, with so many drafts in every forward and no guard.

    python scripts/mtp_figures.py [MODEL] [--depths 0,1,2] [--prompts FILE] [--every 3] [--limit 200]

Greedy answers to held-out chat prompts, by default of the demo model: tokens per forward, the share
of judged drafts that were accepted, and milliseconds: of a forward, and beside it for each draft.
With depth 0 there are no drafts, and the second figure is what sampling and the loop take a forward.
"""

import argparse
from pathlib import Path

from diskmoe.engine.api import Model, Options
from diskmoe.engine.places import demo_dir

PROMPTS = Path(__file__).parent / "demo_prompts" / "heldout.txt"


def figures(model: Path, depth: int, prompts: list[str], limit: int) -> str:
    """One line."""
    tokens = forwards = proposed = judged = accepted = 0
    forward = beside = 0.0
    options = Options(draft_rows=depth, draft=depth, guard=False, ngram=False, ctx=1024)
    with Model.load(model, options) as loaded:
        for prompt in prompts:
            run = loaded.generate(prompt, limit=limit)
            for _ in run:
                pass
            stats = run.stats
            tokens, forwards = tokens + stats.tokens, forwards + stats.decode.forwards
            forward += stats.decode.forward_seconds
            beside += stats.decode.seconds - stats.decode.forward_seconds
            for account in stats.drafts.values():
                proposed += account.proposed
                judged += account.judged
                accepted += account.accepted
    share = f"{accepted / judged:.3f}" if judged else "-"
    return (
        f"depth {depth}: {tokens} tokens, {tokens / forwards:.3f} tokens/forward, accepted {share} of "
        f"{judged} judged; {1e3 * forward / forwards:.2f} ms a forward, "
        f"{1e3 * beside / max(proposed, forwards):.2f} ms a draft"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path, nargs="?", default=demo_dir(None))
    parser.add_argument("--depths", default="0,1,2", help="drafts in each forward")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="a prompt a line")
    parser.add_argument("--every", type=int, default=3, help="of the prompts, each so-manieth")
    parser.add_argument("--limit", type=int, default=200, help="tokens of an answer")
    args = parser.parse_args()
    lines = args.prompts.read_text(encoding="utf-8").splitlines()
    prompts = [line for line in lines if line and not line.startswith("#")][:: args.every]
    for depth in map(int, args.depths.split(",")):
        print(figures(args.model, depth, prompts, args.limit), flush=True)


if __name__ == "__main__":
    main()
