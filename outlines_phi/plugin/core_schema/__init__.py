"""A JSON schema as one that outlines_core reads right, and what is left out of it.

``outlines_core.json_schema.build_regex_from_schema`` looks at one keyword of a schema and at what it knows beside it, and drops
the rest without a word. Here a schema is written anew before it is handed over: references are put in, ``allOf`` is merged,
``anyOf`` and ``oneOf`` are multiplied out over their siblings, values are filtered by their siblings. What then says more than
outlines_core can honour is left out and named, or refused. So the language never has a text that the schema forbids, but for what
is named. It may have fewer: objects have no other keys than the declared ones, in their order.
"""
