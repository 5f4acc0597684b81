"""What can be asked of steadyrun, by anybody and from anywhere?"""
