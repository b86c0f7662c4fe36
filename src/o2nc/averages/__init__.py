"""The averages x̄, ḡ and V of the iterates: `windows` say which iterates count, `update` takes one in."""
