"""Fuses post-ops: what follows an operator is computed while its result is still in registers.

A step that applies an elementwise function, or that adds or multiplies another tensor, joins the
step that computes its operand where nothing else reads that operand. The joined step takes the
place of the later one: its operands have been computed by then, and it is always allowed to move a
step down to its only reader. The runtime splits off what the library has no kernel for.
"""

from __future__ import annotations

from collections import Counter

from collage_engine.toolchains.onednn.steps import OneDnnProgram, PostOp, Step

ANCHORS = {
    "conv",
    "matmul",
    "pool",
    "softmax",
    "layer_norm",
    "reduce",
    "eltwise",
    "binary",
    "concat",
}
"""Names of the steps that can have post-ops."""
HEAVY = {"conv", "matmul"}
"""Names of the steps that post-ops join in preference to others."""
TAKES_TENSORS = HEAVY | {"binary", "eltwise"}
"""Steps that can have another tensor as a post-op. oneDNN 3.2 accepts one for pooling and
softmax too, but reads it wrongly in some layouts."""

MAX_POSTS = 32
"""Post-ops of a step, at most: what oneDNN accepts (``post_ops_limit`` in its sources)."""

VIEWS = {"reshape", "permute", "slice"}
"""Names of the steps whose result lies in their operand's memory."""


def fuse(plan: OneDnnProgram, outputs: tuple[int, ...]) -> None:
    """Fuses the steps of a program in place; ``outputs`` are the values that leave the function."""
    readers: Counter[int] = Counter(v for s in plan.steps for v in s.reads())
    readers.update(outputs)
    steps: list[Step | None] = []
    place_of: dict[int, int] = {}
    for step in plan.steps:
        joined = _join(plan, step, steps, place_of, readers)
        if joined is not None:
            host, merged = joined
            steps[host] = None
            step = merged
        place_of[step.out] = len(steps)
        steps.append(step)
    plan.steps = [s for s in steps if s is not None]
    _bias(plan)
    _note_last_reads(plan, outputs)


def _join(
    plan: OneDnnProgram,
    step: Step,
    steps: list[Step | None],
    place_of: dict[int, int],
    readers: Counter[int],
) -> tuple[int, Step] | None:
    """Return the position of the step that takes ``step`` as a post-op, and the joined step.

    The result is None where no step can take it.
    """
    if step.op == "eltwise":
        fields = step.fields
        function = PostOp("eltwise", fields["alg"], fields["alpha"], fields["beta"])
        candidates = [(fields["src"], [function])]
    elif step.op == "binary":
        candidates = _binary_choices(step)
    else:
        return None
    best: tuple[bool, int, list[PostOp]] | None = None
    for value, posts in candidates:
        at = place_of.get(value)
        host = None if at is None else steps[at]
        if at is None or host is None or host.op not in ANCHORS or readers[value] != 1:
            continue
        if host.op not in TAKES_TENSORS and any(p.kind != "eltwise" for p in posts):
            continue
        if host.op == "binary" and any(_misread(plan, host, p) for p in posts):
            continue
        if host.dims != step.dims or len(host.posts) + len(posts) > MAX_POSTS:
            continue
        choice = (host.op in HEAVY, at, posts)
        if best is None or choice[:2] > best[:2]:
            best = choice
    if best is None:
        return None
    _, at, posts = best
    host = steps[at]
    assert host is not None
    merged = Step(
        host.op,
        step.out,
        step.dims,
        host.fields,
        [*host.posts, *posts, *step.posts],
        host.nodes + step.nodes,
    )
    return at, merged


def _misread(plan: OneDnnProgram, host: Step, post: PostOp) -> bool:
    """Return whether oneDNN 3.2 would compute a post-op on two tensors wrongly.

    Its elementwise kernels of two tensors add another tensor wrongly that is broadcast over the
    batch, to images of one pixel.
    """
    batch, spatial = host.dims[0], host.dims[2:]
    return (
        post.kind == "binary"
        and batch > 1
        and bool(spatial)
        and set(spatial) == {1}
        and plan.dims[post.value] != host.dims
    )


def _binary_choices(step: Step) -> list[tuple[int, list[PostOp]]]:
    """Return which operand could be computed by the host, and what the host then applies."""
    left, right, alg = step.fields["src"], step.fields["other"], step.fields["alg"]
    if left == right:
        return []
    choices = [(left, [PostOp("binary", alg, value=right)])]
    if alg == "sub":
        negated = PostOp("eltwise", "linear", -1.0, 0.0)
        choices.append((right, [negated, PostOp("binary", "add", value=left)]))
    elif alg != "div":
        choices.append((right, [PostOp("binary", alg, value=left)]))
    return choices


def _bias(plan: OneDnnProgram) -> None:
    """Make a constant per output channel that is added first the operator's own bias."""
    for step in plan.steps:
        if step.op not in HEAVY or not step.posts or "bias" in step.fields:
            continue
        first = step.posts[0]
        if first.kind != "binary" or first.alg != "add":
            continue
        source = _constant_behind(plan, first.value)
        axis = len(step.dims) - 1 if step.op == "matmul" else 1
        dims = plan.dims[first.value]
        per_channel = tuple(e if d == axis else 1 for d, e in enumerate(step.dims))
        if source is None or dims != per_channel:
            continue
        if step.op == "matmul":
            step.fields["bias"] = first.value
        else:
            step.fields["bias"] = _before(plan, step, first.value, (dims[axis],))
        del step.posts[0]


def _constant_behind(plan: OneDnnProgram, value: int) -> int | None:
    """Return the constant of which a value is a reshape."""
    made = {s.out: s for s in plan.steps}
    while value in made and made[value].op == "reshape":
        value = made[value].fields["src"]
    return None if value in made or value in plan.inputs else value


def _before(plan: OneDnnProgram, step: Step, value: int, dims: tuple[int, ...]) -> int:
    """Insert a reshape of a value before a step."""
    if plan.dims[value] == dims:
        return value
    out = plan.new_value(dims)
    plan.steps.insert(plan.steps.index(step), Step("reshape", out, dims, {"src": value}))
    return out


def _note_last_reads(plan: OneDnnProgram, outputs: tuple[int, ...]) -> None:
    """Note which post-ops are the last to read a value, whose memory may take the result then."""
    memory: dict[int, int] = {}
    for step in plan.steps:
        source = step.fields["src"] if step.op in VIEWS else step.out
        memory[step.out] = memory.get(source, source)
    last_values = {memory.get(value, value) for value in outputs}
    for step in reversed(plan.steps):
        read = {memory.get(value, value) for value in step.reads()}
        for post in step.posts:
            post.last = memory.get(post.value, post.value) not in last_values
        last_values |= read
