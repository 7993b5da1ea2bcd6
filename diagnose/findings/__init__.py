"""What is said: findings with their fixes, what becomes of them, their order, and the Diagnosis that reports see."""
