"""`quire cluster`: a whole cluster on one machine, and what a cluster looks like to its operator.

`up` runs one (up.py, zookeeper_jars.py, java_child.py); the others look at any cluster: facts.py
reads what is known of it, why.py of one partition, and verdict.py, which is pure, says what that
means.
"""
