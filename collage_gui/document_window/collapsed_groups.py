"""Says which groups of operators are drawn as one box each, and how that changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from collage_engine.drawing.groups import Group


def expand(collapsed: frozenset[str], group: str, groups: Mapping[str, Group]) -> frozenset[str]:
    """Open a collapsed group; the groups directly inside it stay collapsed.

    Args:
        collapsed: Ids of the groups that are drawn as one box.
        group: Id of the group to open.
        groups: Every group by its id.
    """
    return (collapsed - {group}) | _inside({group}, groups)


def expand_around(
    collapsed: frozenset[str], operators: Iterable[int], groups: Mapping[str, Group]
) -> frozenset[str]:
    """Open the groups that hide operators, and only those.

    Args:
        collapsed: Ids of the groups that are drawn as one box.
        operators: The operators that must have boxes of their own.
        groups: Every group by its id.
    """
    wanted = set(operators)

    def hiding(ids: Iterable[str]) -> set[str]:
        return {g for g in ids if g in groups and not wanted.isdisjoint(groups[g].members)}

    closed = hiding(collapsed)
    while closed:
        collapsed = (collapsed - closed) | _inside(closed, groups)
        closed = hiding(collapsed)
    return collapsed


def innermost_open_group(
    collapsed: frozenset[str], operator: int, groups: Mapping[str, Group]
) -> Group | None:
    """Returns the smallest name scope around an operator that is not collapsed.

    Args:
        collapsed: Ids of the groups that are drawn as one box.
        operator: An operator number.
        groups: Every group by its id.
    """
    around = [
        group
        for group in groups.values()
        if operator in group.members and group.id not in collapsed and group.kind != "partition"
    ]
    hidden = max(
        (
            len(groups[g].members)
            for g in collapsed
            if g in groups and operator in groups[g].members
        ),
        default=0,
    )
    return min(
        (group for group in around if len(group.members) > hidden),
        key=lambda group: len(group.members),
        default=None,
    )


def collapse(
    collapsed: frozenset[str], chosen: Group, groups: Mapping[str, Group]
) -> frozenset[str]:
    """Collapses a group; the collapsed groups inside it need no box of their own any more.

    Args:
        collapsed: Ids of the groups that are drawn as one box.
        chosen: The group to collapse.
        groups: Every group by its id.
    """
    members = set(chosen.members)
    inside = {g for g in collapsed if g in groups and members.issuperset(groups[g].members)}
    return (collapsed - inside) | {chosen.id}


def _inside(opened: set[str], groups: Mapping[str, Group]) -> frozenset[str]:
    return frozenset(group.id for group in groups.values() if group.parent in opened)
