// SPDX-License-Identifier: GPL-2.0-only
/*
 * Driver for tests, unknown to the rest of Insula: its ioctl takes a structure with a
 * pointer to a structure with pointers, as ioctls of real devices do.
 */
#include <linux/ctype.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#define TEXT_MAX	(64 << 10)

/* Writes the text at `from` to `to`, in capitals. */
struct nested_text {
	__u64 from;
	__u64 to;
	__u64 size;
};

struct nested_request {
	__u64 text;		/* address of a struct nested_text */
	__u64 letters;		/* out: how many letters there were */
};

#define NESTED_CAPITALS	_IOWR('i', 0x01, struct nested_request)

static u64 make_capitals(char *text, u64 size)
{
	u64 letters = 0, i;

	for (i = 0; i < size; i++) {
		letters += isalpha(text[i]) != 0;
		text[i] = toupper(text[i]);
	}
	return letters;
}

static int change_text(const struct nested_text *text, u64 *letters)
{
	char *copy;
	int err = 0;

	if (!text->size || text->size > TEXT_MAX)
		return -EINVAL;
	copy = vmemdup_user(u64_to_user_ptr(text->from), text->size);
	if (IS_ERR(copy))
		return PTR_ERR(copy);
	*letters = make_capitals(copy, text->size);
	if (copy_to_user(u64_to_user_ptr(text->to), copy, text->size))
		err = -EFAULT;
	kvfree(copy);
	return err;
}

static long nested_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct nested_request request;
	struct nested_text text;
	int err;

	if (command != NESTED_CAPITALS)
		return -ENOTTY;
	if (copy_from_user(&request, (void __user *)argument, sizeof(request)) ||
	    copy_from_user(&text, u64_to_user_ptr(request.text), sizeof(text)))
		return -EFAULT;
	err = change_text(&text, &request.letters);
	if (err)
		return err;
	return copy_to_user((void __user *)argument, &request, sizeof(request)) ? -EFAULT : 0;
}

static const struct file_operations nested_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = nested_ioctl,
};

static struct miscdevice nested = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "insula-nested",
	.fops = &nested_fops,
	.mode = 0666,
};
module_misc_device(nested);

MODULE_DESCRIPTION("Driver for Insula's tests: pointers within structures");
MODULE_LICENSE("GPL");
