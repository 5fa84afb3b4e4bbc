"""An authorizer that allows what it was given, and notes what it was asked."""

from broker.security.acls.index_core import Decision, Reason


class Rules:
    """`allowed`: (operation, resource, name); None: everything. `topics`: {id: name}."""

    generation = 0

    def __init__(self, *allowed, everything=False, topics=None):
        self.allowed = allowed
        self.everything = everything
        self.ids = topics or {}
        self.asked = []
        self.told = []
        self.topics = self

    def decide(self, principal, host, operation, resource, name):
        question = (operation.name, resource.name, name)
        self.asked.append(question)
        may = self.everything or question in self.allowed
        return Decision(may, Reason.DEFAULT_ALLOW if may else Reason.DEFAULT_DENY)

    def is_super_user(self, principal):
        return False

    def tell(self, principal, host, operation, resource, name, request, decision):
        self.told.append((operation.name, resource.name, name, request, decision.is_allowed))

    # -- topics ----------------------------------------------------------------------------------

    def get(self, name):
        return next((Topic(one) for one in self.ids.values() if one == name), None)

    def get_by_id(self, topic_id):
        name = self.ids.get(topic_id)
        return None if name is None else Topic(name)


class Topic:
    def __init__(self, name):
        self.name = name
