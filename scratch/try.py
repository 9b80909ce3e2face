import sys, time, metadr
m, steps = sys.argv[1], int(sys.argv[2])
t=time.time()
kw=dict(a.split('=') for a in sys.argv[4:])
r=metadr.run(metadr.recipe("embedded", m, steps=steps, **kw), seed=int(sys.argv[3]), out="/tmp/runs", device="cpu")
print(m, sys.argv[3:], f"{time.time()-t:.0f}s", [round(x,1) for x in r.scores[-1]], {k: round(v,1) for k,v in r.summary._asdict().items()}, flush=True)
