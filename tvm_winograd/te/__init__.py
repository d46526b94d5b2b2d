"""Convolution algorithms as tensor expressions; how they run is said in schedules/."""
