"""How a step (`o2nc.step`) is carried out: `eager`, operation by operation; `triton`, in one pass over memory."""
