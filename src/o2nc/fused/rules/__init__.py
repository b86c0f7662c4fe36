"""The library's rules as device functions; `o2nc.fused.rule` says what each of them is given and returns."""
