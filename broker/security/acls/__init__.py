"""ACLs: who may do what to which resource, as Kafka's `StandardAuthorizer` decides it.

| file | what |
|--|--|
| bindings.py | an ACL, a filter of ACLs |
| index_core.py | the ACLs in memory, and what they say |
| decisions_core.py | what was decided, remembered until an ACL changes |
| authorizer.py | what a broker asks, and what the audit log is told |
| documents_core.py, store.py | the ACLs in metadata, followed by every broker |
| requests_core.py | ACLs as clients name them |

Who asks: the guards of APIs (broker/guards/), and handlers by `Request.rights`.
"""
