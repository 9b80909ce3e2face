export PYTHONPATH=src OMP_NUM_THREADS=2
for s in 0 1 2; do for steps in 100 150; do
echo naive $steps $s; echo dr $steps $s; echo meta-dr $steps $s; echo meta-dr $steps $s per=image; echo dr $steps $s per=image
done; done > /tmp/jobs
xargs -P 8 -L 1 python scratch/try.py < /tmp/jobs
