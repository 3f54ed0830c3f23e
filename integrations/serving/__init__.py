"""A reference serving process: an example to read and a bench to measure with, not for production.

app         HTTP: routes, streaming, clients that go away      OpenAI's words, in `protocol`
 └─ scheduler   continuous batching: who runs, who waits       one request is a `Generation`
     └─ TransformersEngine  forwards on a worker thread        its `Sequence` holds the lease
"""
