set pagination off
break _fail if 0
run
