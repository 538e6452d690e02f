"""The command line: commands, training jobs built from configs, the kill test.

This room turns arguments into calls of the library and prints the results. It never trains, saves
or resumes by itself. Nothing imports it except `__main__`; the console script starts `main.py`.
`main`, `arguments` and the command files import TensorFlow only inside the commands that train.
"""
