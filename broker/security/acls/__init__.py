"""ACLs: who may do what to which resource, as Kafka's `StandardAuthorizer` decides it.

| file | what |
|--|--|
| bindings.py | an ACL, a filter of ACLs |
| index_core.py | the ACLs in memory, and what they say |
| decisions_core.py | what was decided, remembered until an ACL changes |

Nobody is asked for rights yet: ACLs are not stored, and dispatch has no authorizer.
"""
