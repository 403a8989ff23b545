"""The cluster's metadata: an ordered log of changes, the image that results from them, and the decisions behind them.

`logs` has the metadata log's interface and its forms in a file and in memory, `zookeeper` the one in ZooKeeper. `image`
has the records and the image that replaying them makes; `metadata` is a broker's running copy. `logs/consensus` (in
`memory_ensemble` and `zookeeper`) tells which brokers are members. `decisions` determines which records follow from a
request, a broker's death or its return: pure functions of an image, so that they can be tested, simulated and read
without a broker.
"""
