"""The scripts that start Redis in examples/deployment, run with real servers on this machine."""

from pathlib import Path

import pytest

from sessions.connection.client import RedisClient
from sessions.store.store import SessionStore
from tests.deployment.redis_nodes import PASSWORD, Nodes, nodes
from tests.helpers.redis_topology import free_port, wait_for

REDIS, SENTINEL = "start-redis.sh", "start-sentinel.sh"


def start_all(made: Nodes) -> None:
    for host in made.hosts:
        made.start(REDIS, host)
    for host in made.hosts:
        made.start(SENTINEL, host)


def whole(made: Nodes) -> str:
    """The primary that all sentinels name, who know each other, and all others replicate; or ""."""
    named = {made.primary(host) for host in made.hosts}
    primary = named.pop()
    roles = {host: "master" if host == primary else "slave" for host in made.hosts}
    is_whole = not named and all(made.role(host) == roles[host] for host in made.hosts)
    return (
        primary
        if is_whole and all(made.known(host, "SENTINELS") == 2 for host in made.hosts)
        else ""
    )


async def stored(made: Nodes) -> SessionStore:
    """The store there, which has checked what it needs of a Redis."""
    sentinels = ",".join(f"{host}:{made.sentinel_port}" for host in made.hosts)
    return await SessionStore.open(f"redis+sentinel://:{PASSWORD}@{sentinels}/parley/0")


def cluster_url(made: Nodes) -> str:
    return f"redis+cluster://:{PASSWORD}@" + ",".join(f"{h}:{made.port}" for h in made.hosts)


async def test_a_primary_replicas_and_sentinels_find_each_other_and_suit_the_store(
    tmp_path: Path,
) -> None:
    with nodes(tmp_path, free_port()) as made:
        start_all(made)
        wait_for(lambda: whole(made) == made.hosts[0])
        await (await stored(made)).close()


@pytest.mark.slow
async def test_what_another_primary_took_survives_a_power_cut_before_the_first_is_back(
    tmp_path: Path,
) -> None:
    with nodes(tmp_path, free_port()) as made:
        start_all(made)
        first = made.hosts[0]
        wait_for(lambda: whole(made) == first)
        await tell(made, "before")
        wait_for(lambda: all(made.known(host, "REPLICAS") == 2 for host in made.hosts))
        wait_for(lambda: made.ask(first, "WAIT", "2", "1000") == "2")
        made.kill(REDIS, first)
        wait_for(lambda: all(made.primary(host) in made.hosts[1:] for host in made.hosts))
        await tell(made, "after")
        wait_for(lambda: made.ask(made.primary(first), "WAIT", "1", "1000") == "1")
        wait_for(lambda: all(made.has_written(host) for host in made.hosts[1:]))
        # The first host is the first to be back, with what it knew.
        made.kill_all()
        start_all(made)
        wait_for(lambda: whole(made))
        store = await stored(made)
        assert await store.client.call("GET", "told") in ("after", b"after")
        await store.close()
        wait_for(lambda: made.ask(first, "GET", "told") == "after")


async def tell(made: Nodes, what: str) -> None:
    store = await stored(made)
    await store.client.call("SET", "told", what)
    await store.close()


async def test_a_cluster_is_formed_once_and_is_whole_after_all_of_its_nodes_have_new_addresses(
    tmp_path: Path,
) -> None:
    with nodes(tmp_path, free_port()) as made:
        first = made.hosts[0]

        def is_formed() -> bool:
            known = [made.ask(host, "CLUSTER", "INFO") for host in made.hosts]
            return all(
                "cluster_state:ok" in info and "cluster_slots_ok:16384" in info for info in known
            )

        def start_nodes() -> None:
            for host in made.hosts:
                made.start("start-cluster-node.sh", host)

        start_nodes()
        made.run("form-cluster.sh", first)
        wait_for(is_formed)
        assert "already" in made.run("form-cluster.sh", first)
        store = await SessionStore.open(cluster_url(made))
        await store.client.call("SET", "kept", "yes")
        await store.close()
        wait_for(lambda: all(made.has_written(host) for host in made.hosts))
        made.move()
        start_nodes()
        wait_for(is_formed)
        client = RedisClient(cluster_url(made))
        try:
            assert await client.call("GET", "kept") in ("yes", b"yes")
        finally:
            await client.close()
