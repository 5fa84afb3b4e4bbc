"""Rules of rights (ACLs), and each one broken."""

from __future__ import annotations

from sim.mutations.mutation import Mutation, Patch

STORE = "broker.security.acls.store"
HANDLER = "broker.handlers.acls"
STORE_TESTS = ("tests/broker/security/acls/test_store.py",)
HANDLER_TESTS = ("tests/broker/handlers/test_acls.py",)

RIGHTS_RULES = (
    Mutation(
        "rights-overwritten",
        "a change of rights goes over one of another broker that was not seen",
        (
            Patch(
                STORE,
                "                await self._store.put(path, data, node.version)",
                "                await self._store.put(path, data, -1)",
            ),
        ),
        STORE_TESTS,
    ),
    Mutation(
        "rights-matched-in-memory",
        "rights to take are looked for in what the broker has heard of",
        (Patch(HANDLER, "            await store.refresh()", "            pass"),),
        HANDLER_TESTS,
    ),
    Mutation(
        "rights-not-in-force",
        "a change of rights is answered before the broker has it in memory",
        (
            Patch(
                STORE,
                "            await self._have(name, await _decoded(name, "
                "await self._folder.read_one(name)))",
                "            pass",
            ),
        ),
        STORE_TESTS,
    ),
    Mutation(
        "rights-not-followed",
        "what other brokers change of rights that are there already is not looked at",
        (
            Patch(
                STORE,
                "                await self._have(name, acls)\n\n    async def _have",
                "                if name not in self._documents:\n"
                "                    await self._have(name, acls)\n\n    async def _have",
            ),
        ),
        STORE_TESTS,
    ),
)
