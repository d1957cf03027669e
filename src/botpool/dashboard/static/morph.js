// Make one element like another with as few changes as can be: what has the same id stays the same element, so
// that the focus, what is selected and what is scrolled stay where they are.

/** Let `old` have the attributes and the children of `fresh`. */
export function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  attributes(old, fresh);
  children(old, fresh);
}

function attributes(old, fresh) {
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
}

function children(old, fresh) {
  const named = new Map();
  for (const child of old.children) if (child.id) named.set(child.id, child);
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const known = wanted.id ? named.get(wanted.id) : alike(place, wanted) ? place : null;
    if (known && known.nodeName === wanted.nodeName) {
      if (known === place) place = place.nextSibling;
      else old.insertBefore(known, place);
      if (known.nodeType === Node.ELEMENT_NODE) morph(known, wanted);
      else if (known.nodeValue !== wanted.nodeValue) known.nodeValue = wanted.nodeValue;
    } else {
      old.insertBefore(document.importNode(wanted, true), place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

// Elements without an id match by their place.
function alike(old, fresh) {
  return old && old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && !old.id;
}
