"""A bank of two tellers whose databases follow one partition (docs/locks.md):

python -m bank_example run      a server and two tellers, started again when they die
python -m bank_example break    kills one of the three at random, now and then
python -m bank_example audit    judges both databases against the log, while all that goes on
"""
