"""Operations on masks without dense arrays: RLE, outlines, strips and stray pixels."""
