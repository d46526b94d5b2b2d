"""What several rooms ask of TVM's IR, and the one file that knows what TVM 0.27 keeps private."""
