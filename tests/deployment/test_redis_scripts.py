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


def is_whole(made: Nodes, primary: str) -> bool:
    """Whether all sentinels know each other and this primary, and all others replicate it."""
    roles = {host: made.role(host) for host in made.hosts}
    return roles == {host: "master" if host == primary else "slave" for host in made.hosts} and all(
        made.primary(host) == primary and made.others(host) == 2 for host in made.hosts
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
        wait_for(lambda: is_whole(made, made.hosts[0]))
        await (await stored(made)).close()


@pytest.mark.slow
async def test_sentinels_choose_another_primary_and_the_old_one_comes_back_as_its_replica(
    tmp_path: Path,
) -> None:
    with nodes(tmp_path, free_port()) as made:
        start_all(made)
        first = made.hosts[0]
        wait_for(lambda: is_whole(made, first))
        store = await stored(made)
        await store.client.call("SET", "kept", "yes")
        await store.close()
        wait_for(lambda: made.ask(first, "WAIT", "2", "1000") == "2")
        made.kill(REDIS, first)
        wait_for(lambda: made.primary(made.hosts[1]) in made.hosts[1:])
        second = made.primary(made.hosts[1])
        made.start(REDIS, first)
        wait_for(lambda: is_whole(made, second))
        # Then a power cut: all at once, and the first host's Redis is the first to be back.
        made.kill_all()
        start_all(made)
        wait_for(lambda: is_whole(made, second))
        store = await stored(made)
        assert await store.client.call("GET", "kept") in ("yes", b"yes")
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
        made.move()
        start_nodes()
        wait_for(is_formed)
        client = RedisClient(cluster_url(made))
        assert await client.call("GET", "kept") in ("yes", b"yes")
        await client.close()
