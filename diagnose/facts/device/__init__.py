"""What the device does: kernels, precision, fusion, copies, memory."""
