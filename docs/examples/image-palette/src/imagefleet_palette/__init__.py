"""The job type `image_palette`: the colours of an uploaded image, most frequent first."""
